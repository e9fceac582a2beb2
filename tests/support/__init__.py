"""Shared pieces for the tests: tokenizers, chat templates, and text for small tokenizers to learn from."""

SENTENCES = (
    "Add the two numbers first.\n\nThen take away the third one.\n\nSo the answer is 17.",
    "12 + 5 = 17.\n\nSo there are 17 apples in the basket.",
    "Josh buys a house for $80,000 and then puts in $50,000 in repairs.",
    "The cost of the house and repairs is 80,000 + 50,000 = 130,000 dollars.\n\nHe made a profit of 70,000.",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "In May she sold 48 / 2 = 24 clips.\n\nAltogether she sold 48 + 24 = 72 clips.\n\n#### 72",
    "How many apples does each child get if there are 36 apples and 9 children?",
    "Each child gets 36 / 9 = 4 apples.\n\nThe answer is 4.",
    "Step 1: Find the hours.\n\nStep 2: Multiply by the price per hour.\n\nStep 3: Write the answer.",
    "A train goes 60 miles in one hour. How far does it go in three hours?",
    "It goes 60 * 3 = 180 miles in three hours.\n\nTherefore the distance is 180 miles.",
    "You are a helpful assistant. Answer the question and show your steps.",
    "Please solve the problem step by step, and put your final answer within \\boxed{}.",
    "The line must begin with a capital letter, and it must end with a number.",
    "If x + 3 = 10, then x = 10 - 3 = 7.\n\nWe check that 7 + 3 = 10.",
    "First we need the total number of students in the school.\n\nNext we need the number of teachers.",
    "What is the sum of the numbers from 1 to 100? It is 100 * 101 / 2 = 5050.",
    "There are twice as many sheep in Toulouse as in Charleston.",
    "The price rises by 25 percent, so it becomes 40 * 1.25 = 50 dollars.",
    "Let us think about how much water is left when half of it has been used.",
)
